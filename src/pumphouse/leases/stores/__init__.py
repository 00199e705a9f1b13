"""The checkpoint stores: memory, SQLite, Azure blobs, and leased Azure blobs."""
