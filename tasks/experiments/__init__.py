"""One protocol a published table."""
