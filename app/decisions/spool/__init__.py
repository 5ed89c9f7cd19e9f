"""The spool: decisions on this machine's disk, from before their answer until they are stored.

A process that answers has a directory of its own, named by its writer id, in the replica's spool
directory. Rows are appended to memory-mapped, preallocated segments: what was appended is the
kernel's, and outlives the process, however that ends. A copier, as a rule another process, brings
them to Postgres and removes what it has stored.
"""
