// Package northbound reads and writes the rows of package ovn in a real OVN Northbound database.
//
// Each pass asks the server, in one transaction, for what the owner has, and writes all changes
// in another: nothing is concluded from a cache, which is empty or old after a connection was
// lost. A connection that is lost is not restored behind the caller's back. The next pass opens
// another one, to the first endpoint that answers.
package northbound
