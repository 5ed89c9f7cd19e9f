"""The copier: brings what processes spooled to Postgres, in batches, each row exactly once."""
