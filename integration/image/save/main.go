// Command save writes an image of programs to an archive: what make image runs. The first is
// that which the image runs.
//
//	save -o ARCHIVE NAME:TAG PROGRAM...
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/plumbline/plumbline/integration/image"
)

func main() {
	output := flag.String("o", "image.tar", "the archive to write")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: save -o ARCHIVE NAME:TAG PROGRAM...")
		os.Exit(2)
	}
	files := map[string]string{}
	for _, program := range flag.Args()[1:] {
		files["/"+filepath.Base(program)] = program
	}
	err := image.WriteFile(*output, image.Image{
		Names:      []string{flag.Arg(0)},
		Files:      files,
		Entrypoint: []string{"/" + filepath.Base(flag.Arg(1))},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "save:", err)
		os.Exit(1)
	}
}
