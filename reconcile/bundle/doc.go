// Package bundle owns the archive that users send to whoever supports them: a
// tar.gz of files and of what programs say, bounded in size, that is whole or not
// there.
//
// It never fails for one part of it: what could not be had, or was cut, is listed in
// problems.txt at the end of the archive. It copies regular files only and follows no
// symbolic link, so that users do not send files they do not know of. The caller decides
// what is added, and that it has no secrets.
//
// The way in is [Create], then one call per part, then [Bundle.Close].
package bundle
