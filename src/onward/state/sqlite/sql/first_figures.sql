-- The first minute, from one on, of which there are figures.
SELECT min(minute) FROM /*schema*/figure WHERE minute >= :minute AND typeof(minute) = 'integer'
