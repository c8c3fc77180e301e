"""Programs over several devices: meshes, shardings of arrays, Shardy's propagation."""
