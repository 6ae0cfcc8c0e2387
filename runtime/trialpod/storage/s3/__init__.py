"""Storage in a bucket of an S3 server."""
