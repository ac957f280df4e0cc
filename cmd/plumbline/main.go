package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/plumbline/plumbline/topology/fault"
)

// The exit statuses beside 0.
const (
	exitError       = 1
	exitDiffers     = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal cancels: a pass in progress is rolled back. The second one kills.
	context.AfterFunc(ctx, stop)
	std := stdio{os.Stdin, &output{Writer: os.Stdout}, os.Stderr}
	cmd, args := program(os.Args[0], os.Args[1:], std)
	os.Exit(runCommand(ctx, cmd, args, std))
}

// stdio holds the standard streams.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// note prints a remark on standard error.
func (s stdio) note(format string, args ...any) {
	fmt.Fprintf(printable{Writer: s.err}, "plumbline: note: "+format+"\n", args...)
}

// output is standard output. It keeps the first error, of a disk that is full: lines of text are written without a look at it.
type output struct {
	io.Writer
	failed error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if o.failed == nil {
		o.failed = err
	}
	return n, err
}

// status is an exit status without an error message: something differs.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// runCommand runs a command, and returns the exit status.
func runCommand(ctx context.Context, cmd *cobra.Command, args []string, std stdio) int {
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	s, differs := errors.AsType[status](err)
	if o, ok := std.out.(*output); ok && o.failed != nil && (err == nil || differs) {
		err, differs = fmt.Errorf("the output is incomplete: %w", o.failed), false
	}
	if differs {
		return int(s)
	}
	if err == nil {
		return 0
	}
	complain(std.err, err)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(std.err, "plumbline: interrupted")
		return exitInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Fprintln(std.err, "plumbline: the time limit was reached: --timeout sets it")
	}
	return exitError
}

// complain writes an error, one line per problem; continuation lines are indented already.
// It includes the details for operators, since the user has access to the node.
func complain(w io.Writer, err error) {
	w = printable{Writer: w}
	text := strings.TrimSpace(err.Error())
	if detail := fault.Detail(err); detail != "" {
		text += "\n  " + detail
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if !strings.HasPrefix(line, " ") {
			line = "plumbline: " + line
		}
		fmt.Fprintln(w, line)
	}
}
