// Package testdata is for the check of words.
package testdata

// A comment in which the port is put right. want _put_right
func Fight() string {
	// want _made_again Over two lines, the address is made
	// again.
	return "the link is put right" // want _put_right
}

// Names are not read, nor `made anew` in backquotes.
var madeAnew = Fight()
