"""The `onward` command: words on the command line come in, a running worker, a migrated database or a demo goes out."""
