package habits // want revive

import (
	"errors"
	"fmt"
	"os"
)

type kind int

const (
	one kind = iota
	two
)

func init() { // want gochecknoinits
	fmt.Println() // want forbidigo
}

func Exported(k kind) error { // want revive
	switch k { // want exhaustive
	case one:
	}
	err := fmt.Errorf("wrapped: %v", os.ErrNotExist) // want errorlint
	if err == os.ErrExist {                          // want errorlint
		return errors.New("exists")
	}
	os.Chdir("/") //nolint // want nolintlint
	os.Chdir("/") // want errcheck
	return nil
}

// Ends without a full stop // want godot
func Ends() kind { return two } // want revive

// Says prints a number as if it were text.
func Says() string { return fmt.Sprintf("%s", 1) } // want govet
