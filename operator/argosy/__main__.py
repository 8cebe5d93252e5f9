from argosy import main

main()
