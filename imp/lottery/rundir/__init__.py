"""The run directory: names of files, files with checksums, locks, identity, lineage."""
