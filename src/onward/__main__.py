"""`python -m onward` is the `onward` command."""

from onward.cli.main import main

if __name__ == "__main__":
    main()
