-- A range of the primary key: a bound that may be missing would not be one, if it were only behind an OR.
job.id <= coalesce(:after::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') AND (:after::uuid IS NULL OR job.id < :after::uuid)
AND job.id >= coalesce(:down_to::uuid, '00000000-0000-0000-0000-000000000000')
/*include fragments/filter_jobs*/
/*include fragments/filter_failed*/
