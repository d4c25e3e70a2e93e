-- The file behind the main database; empty for one in memory.
SELECT file FROM pragma_database_list WHERE name = 'main'
