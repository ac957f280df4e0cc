// Command save writes an image of one program to an archive: what make image runs.
//
//	save -o ARCHIVE NAME:TAG PROGRAM
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/plumbline/plumbline/integration/cluster/image"
)

func main() {
	output := flag.String("o", "image.tar", "the archive to write")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: save -o ARCHIVE NAME:TAG PROGRAM")
		os.Exit(2)
	}
	name, program := flag.Arg(0), flag.Arg(1)
	inside := "/" + filepath.Base(program)
	err := image.WriteFile(*output, image.Image{
		Names:      []string{name},
		Files:      map[string]string{inside: program},
		Entrypoint: []string{inside},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "save:", err)
		os.Exit(1)
	}
}
