"""Reports on compiled programs: what runs on the device or the host, why, and at what cost.

`data` holds the numbers; `advice`, `table`, `page` and `picture` render them; `report` is the
object that users get.
"""
