-- What is broken in the file, up to twenty things; reads all of it.
SELECT quick_check FROM pragma_quick_check(20)
