-- Copy those of these chains into the history that ended less long ago than they are kept there, of each type its own
-- (NULL: none); how many. Whoever calls it has them locked, and deletes them in the same transaction.
CREATE FUNCTION /*schema*/move_to_history(
  chain_ids uuid[], type_names text[], keep_history double precision[], at timestamptz) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  moved uuid[];
  part  record;
BEGIN
  moved := ARRAY(
    SELECT h.id FROM /*schema*/job h WHERE h.id = ANY(chain_ids)
      AND h.chain_ended_at > at - make_interval(secs => keep_history[array_position(type_names, h.type_name)]));
  FOR part IN
    SELECT m.starts_at,
      (m.starts_at AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC' + make_interval(secs => m.kept) AS kept_until
    FROM (
      SELECT date_trunc('month', h.chain_ended_at, 'UTC') AS starts_at,
        max(keep_history[array_position(type_names, h.type_name)]) AS kept
      FROM /*schema*/job h WHERE h.id = ANY(moved) GROUP BY 1
    ) m ORDER BY m.starts_at
  LOOP
    -- Locked, so that nobody drops it meanwhile.
    PERFORM 1 FROM /*schema*/history_part p
      WHERE p.starts_at = part.starts_at AND p.kept_until >= part.kept_until AND NOT p.is_over FOR KEY SHARE;
    IF NOT FOUND THEN
      INSERT INTO /*schema*/history_part AS p (starts_at, kept_until) VALUES (part.starts_at, part.kept_until)
        ON CONFLICT (starts_at) DO UPDATE
        SET kept_until = greatest(p.kept_until, excluded.kept_until), is_over = false;
    END IF;
    IF NOT /*schema*/has_history_part(part.starts_at) THEN
      PERFORM /*schema*/make_history_parts();
    END IF;
  END LOOP;

  INSERT INTO /*schema*/history (
    /*include fragments/history_columns*/, chain_ended_at)
  SELECT
    /*include fragments/history_columns*/, chain_ended_at
  FROM /*schema*/job WHERE id = ANY(moved);
  INSERT INTO /*schema*/history (
    /*include fragments/history_columns*/, chain_ended_at)
  SELECT
    /*include fragments/history_columns*/, (SELECT h.chain_ended_at FROM /*schema*/job h WHERE h.id = job.chain_id)
  FROM /*schema*/job job WHERE chain_id = ANY(moved) AND chain_index > 0;
  RETURN cardinality(moved);
END $$;
