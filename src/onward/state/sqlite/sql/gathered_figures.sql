-- Minutes before this one are put together.
UPDATE /*schema*/figure_turn SET loose_from = :minute WHERE loose_from < :minute
