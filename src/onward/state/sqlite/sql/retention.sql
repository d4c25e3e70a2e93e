-- Who prunes, until when, and how far they came.
SELECT held_by, held_until, walks FROM /*schema*/retention
