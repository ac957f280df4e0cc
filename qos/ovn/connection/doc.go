// Package connection runs transactions on a database of OVN or Open vSwitch, and reads what the
// server answers.
//
// Each call has a deadline. A connection that is lost or does not answer is closed, and the
// next call opens another one, to the first endpoint that answers within its part of the time. Nothing
// is cached.
package connection
