"""Starting programs: the checks of arguments and results, and the dispatcher in C."""
