"""How programs are divided over devices: meshes, shardings of arrays, Shardy's propagation."""
