package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/plumbline/plumbline/integration/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, arguments []string) error {
	if len(arguments) == 2 && arguments[0] == "push" {
		return push(ctx, out, arguments[1])
	}
	r := release{checkout: "."}
	flags := flag.NewFlagSet("build", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "such as v0.1.0")
	flags.StringVar(&r.revision, "revision", "", "commit")
	flags.StringVar(&r.registry, "registry", "",
		"host and path, such as ghcr.io/plumbline, of the repositories plumbline and charts/plumbline")
	flags.StringVar(&r.helm, "helm", "", "the program helm")
	if len(arguments) == 0 || arguments[0] != "build" {
		return errors.New("want build or push")
	}
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("want one folder to write to")
	}
	r.folder = flags.Arg(0)
	return r.build(ctx)
}

// push pushes the image, then the chart, which names the image.
func push(ctx context.Context, out io.Writer, folder string) error {
	for _, kind := range []string{"image", "chart"} {
		files, err := filepath.Glob(filepath.Join(folder, "plumbline-*-"+kind+".tar"))
		if err == nil && len(files) != 1 {
			err = fmt.Errorf("%q has %d archives of an image, and a release has one: run make release", folder, len(files))
		}
		if err != nil {
			return err
		}
		pushed, err := image.Push(ctx, files[0])
		if err != nil {
			return err
		}
		fmt.Fprintln(out, strings.Join(pushed, "\n"))
	}
	return nil
}
