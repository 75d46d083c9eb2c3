"""hitlab from a checkout: python run.py --help"""

import sys

if __name__ == "__main__":
    try:
        from hitlab.__main__ import main

        main()
    except KeyboardInterrupt:  # before main was there to catch it
        print("hitlab: interrupted", file=sys.stderr)
        sys.exit(130)
