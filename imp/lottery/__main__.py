from lottery.cli import main

main()
