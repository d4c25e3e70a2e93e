-- Until the transaction ends: what is made for a single use takes longer to compile than to run, and where little was
-- vacuumed the server would rather read and sort all of a type than the first of it.
SELECT set_config('jit', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)
