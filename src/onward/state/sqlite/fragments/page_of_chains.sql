-- A blob sorts behind every text: the first page is a range like the others, found without reading what is above it.
header.id < coalesce(:after, x'ffffffffffffffffffff') AND header.id >= coalesce(:down_to, '')
/*include fragments/filter_chains*/
/*include fragments/filter_failed*/
