// Package bundle owns the archive that people send to whoever helps them: a
// tar.gz of files and of what programs say, bounded in size, that is whole or not
// there.
//
// It never fails for one part of it: what could not be had, or was cut, is listed
// in problems.txt at the end of the archive. It copies regular files only and
// follows no symbolic link, so that nobody is made to send what he does not know
// of. What goes in is the caller's business; so is that nothing secret does.
//
// The way in is [Create], then one call per part, then [Bundle.Close].
package bundle
