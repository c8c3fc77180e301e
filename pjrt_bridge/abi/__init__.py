"""The PJRT C API as data, and the one gate through which every call goes."""
