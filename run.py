"""hitlab from a checkout: python run.py --help"""

from hitlab.cli import main

if __name__ == "__main__":
    main()
