"""The weights file: HDF5, its layout, and writing that survives a full disk."""
