-- What who starts or retries a chain with a key locks: the second waits until the first has ended. Without a key: what
-- stands for all keys of a type.
CREATE FUNCTION /*schema*/key_lock(type_name text, key text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
  SELECT hashtextextended('/*schema*/job' || type_name || chr(1) || key, 0)
$$;

-- Lock keys until the transaction ends, in one order for everybody. A server has room for some thousand locks, of all
-- its clients together: whoever comes with many keys has the types for himself instead, which the others only share.
CREATE FUNCTION /*schema*/lock_keys(type_names text[], keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF cardinality(keys) > 100 THEN
    PERFORM pg_advisory_xact_lock(k.lock) FROM (
      SELECT DISTINCT /*schema*/key_lock(t, '') AS lock FROM unnest(type_names) t ORDER BY 1) k;
  ELSE
    PERFORM pg_advisory_xact_lock_shared(k.lock) FROM (
      SELECT DISTINCT /*schema*/key_lock(t, '') AS lock FROM unnest(type_names) t ORDER BY 1) k;
    PERFORM pg_advisory_xact_lock(k.lock) FROM (
      SELECT DISTINCT /*schema*/key_lock(w.type_name, w.key) AS lock
      FROM unnest(type_names, keys) w(type_name, key) ORDER BY 1) k;
  END IF;
END $$;
