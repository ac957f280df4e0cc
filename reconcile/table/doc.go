// Package table has what parts of the agent share as data. One part writes a value, others read it and
// are woken when it changes: none calls another to say so. A part that is slow is woken once for
// several changes, and reads the latest.
package table
