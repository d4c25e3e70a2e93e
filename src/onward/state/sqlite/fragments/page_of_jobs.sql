-- A blob sorts behind every text: the first page is a range like the others, found without reading what is above it.
job.id < coalesce(:after, x'ffffffffffffffffffff') AND job.id >= coalesce(:down_to, '')
/*include fragments/filter_jobs*/
/*include fragments/filter_failed*/
