-- What is stored under an id. ARGV: the id.
return describe(ARGV[1])
