"""`python -m app.cli`, for where the console script is not on the path."""

from app.cli import main

main()
