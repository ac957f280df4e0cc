package fault

import "fmt"

// Place is where a file says what an error is about. The zero value is for what is of no file: an object of the API server.
type Place struct {
	File string
	Line int // from 1; 0 for the file as a whole
}

// Before returns a message behind its place, as compilers write it.
func (p Place) Before(message string) string {
	switch {
	case p.File == "":
		return message
	case p.Line == 0:
		return p.File + ": " + message
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, message)
}

// Placed is an error with its place.
type Placed struct {
	Place
	Err error
}

func (e *Placed) Error() string { return e.Before(e.Err.Error()) }
func (e *Placed) Unwrap() error { return e.Err }
