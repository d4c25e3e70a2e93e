-- Minutes before this one are put together.
UPDATE /*schema*/figure_turn SET loose_from = :minute::integer WHERE loose_from < :minute::integer
