package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/plumbline/plumbline/ops"
	"github.com/plumbline/plumbline/ops/all"
	"github.com/plumbline/plumbline/reconcile/kernel"
	"github.com/plumbline/plumbline/reconcile/node"
	"github.com/plumbline/plumbline/reconcile/version"
	"github.com/plumbline/plumbline/topology"
	"github.com/plumbline/plumbline/topology/fault"
	"github.com/plumbline/plumbline/topology/suggest"
)

// app holds what all subcommands share.
type app struct {
	stdio
	registry *ops.Registry
	stateDir string
	timeout  time.Duration
	verbose  bool
	ovn      databases
	daemon   daemonFlags
	host     kernel.Options // where the host is found; not a matter of flags
}

func newRoot(std stdio) *cobra.Command {
	a := &app{stdio: std, ovn: databases{ovs: defaultOVS, nb: defaultNB}}
	root := &cobra.Command{
		Use:   "plumbline",
		Short: "Chained container networks from one description",
		Long: `plumbline applies a NetworkTopology to a network namespace: devices, bonds, VLANs,
VRFs, addresses and settings. It shows the plan first, rolls back if a step fails, and
repairs drift.

Exit status: 0 success, or nothing to do; 1 an error, and nothing was changed;
2 something differs (plan, status); 130 interrupted and rolled back.`,
		Example: `  plumbline validate -f topology.yaml
  plumbline plan -f topology.yaml --netns blue
  plumbline apply -f topology.yaml --netns blue
  plumbline status
  plumbline delete --netns blue`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          func(cmd *cobra.Command, args []string) error { return unknownCommand(cmd, args) },
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := complete(cmd); err != nil {
				return err
			}
			a.registry, err = all.Registry()
			return err
		},
	}
	root.Version = version.Version()
	root.SetVersionTemplate(version.Line("plumbline") + "\n")
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if !cmd.HasParent() {
			// A misspelt command's flags are taken for those of the root.
			if unknown := unknownCommand(cmd, cmd.Flags().Args()); unknown != nil {
				return unknown
			}
		}
		return fmt.Errorf("%w: see `%s --help`", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVar(&a.stateDir, "state-dir", "/var/lib/plumbline", "`directory` of the journal")
	f.DurationVar(&a.timeout, "timeout", time.Minute, "`time` limit of apply and delete")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "log to standard error")
	root.AddCommand(a.validate(), a.plan(), a.apply(), a.status(), a.delete(), a.run(), a.agent(), a.controller(), a.graph(), a.devices(),
		a.claim(), a.importing(), a.maintain(), a.pod(), a.quality(), a.support(), a.version(), a.probe(), a.checkInstall())
	return root
}

// unknownCommand refuses arguments of the root command, which has none.
func unknownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("unknown command %q%s", args[0], suggest.Hint(args[0], names))
}

// complete refuses a command without a required flag. Cobra does too, but its message does
// not have the form of ours.
func complete(cmd *cobra.Command) error {
	var missing []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, required := f.Annotations[cobra.BashCompOneRequiredFlag]; required && !f.Changed {
			missing = append(missing, "--"+f.Name)
		}
	})
	if len(missing) == 0 {
		return nil
	}
	verb := map[bool]string{true: "is", false: "are"}[len(missing) == 1]
	return fmt.Errorf("%s: %s missing: see `%s --help`", strings.Join(missing, ", "), verb, cmd.CommandPath())
}

// noArgs refuses arguments where there are only flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unexpected argument %q: see `%s --help`", args[0], cmd.CommandPath())
}

// log writes to standard error, only warnings and errors unless a lower level is set.
func (a *app) log(level slog.Level) *slog.Logger {
	if a.verbose {
		level = slog.LevelDebug
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: withDetail}
	if a.daemon.logFormat == formatJSON {
		return slog.New(slog.NewJSONHandler(a.err, options))
	}
	return slog.New(slog.NewTextHandler(a.err, options))
}

// withDetail adds to the log the details that an error has for operators only.
func withDetail(_ []string, a slog.Attr) slog.Attr {
	err, ok := a.Value.Any().(error)
	if !ok {
		return a
	}
	if detail := fault.Detail(err); detail != "" {
		a.Value = slog.StringValue(err.Error() + " (" + detail + ")")
	}
	return a
}

// limited sets the time limit of apply and delete; 0 is no limit.
func (a *app) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.timeout)
}

// fileFlag adds -f.
func fileFlag(cmd *cobra.Command, files pflag.Value) {
	cmd.Flags().VarP(files, "filename", "f", "`file` with a NetworkTopology; - is standard input")
	_ = cmd.MarkFlagFilename("filename", "yaml", "yml", "json")
}

// oneFile is the value of a flag that may be given once: with the last of several files,
// the others would be left out silently.
type oneFile string

func (o *oneFile) String() string { return string(*o) }
func (*oneFile) Type() string     { return "string" }

// Set implements pflag.Value.
func (o *oneFile) Set(file string) error {
	// Cobra parses the flags twice to complete what follows them.
	if *o != "" && string(*o) != file {
		return fmt.Errorf("this command takes one file, and %q was given before", string(*o))
	}
	*o = oneFile(file)
	return nil
}

// fileList is the value of a flag that may be repeated, as that of kubectl.
type fileList []string

func (l *fileList) String() string { return strings.Join(*l, ",") }
func (*fileList) Type() string     { return "string" }

// Set implements pflag.Value.
func (l *fileList) Set(file string) error {
	*l = append(*l, file)
	return nil
}

// addressFlag adds --address.
func addressFlag(cmd *cobra.Command, addresses *[]string, more string) {
	cmd.Flags().StringArrayVar(addresses, "address", nil, "address for a step beside those of its config, with prefix: `STEP=ADDRESS`"+more)
	_ = cmd.RegisterFlagCompletionFunc("address", cobra.NoFileCompletions)
}

// parse reads a file with objects.
func (a *app) parse(ctx context.Context, file string) (*topology.Manifest, error) {
	data, name, err := a.read(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	return topology.Parse(name, data)
}

// decode reads a topology and checks it together with what its steps are given.
func (a *app) decode(ctx context.Context, f *topology.Manifest, given ops.Givens) (*topology.Topology, error) {
	t, _, err := node.Load(ctx, f, given, a.registry)
	return t, err
}

// read reads a file, or standard input, and returns its name for messages.
func (a *app) read(ctx context.Context, file string) ([]byte, string, error) {
	name := file
	if file == "-" {
		name = "standard input"
	}
	// A terminal or a pipe may never end, and neither a read nor an open ends with the context.
	type content struct {
		data []byte
		err  error
	}
	done := make(chan content, 1)
	go func() {
		data, err := a.readAll(file)
		done <- content{data, err}
	}()
	select {
	case <-ctx.Done():
		return nil, name, fmt.Errorf("read %s: %w", name, ctx.Err())
	case c := <-done:
		return c.data, name, c.err
	}
}

// readAll reads as much as Decode accepts, and one byte more, to detect larger input.
func (a *app) readAll(file string) ([]byte, error) {
	in := a.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, topology.MaxBytes+1))
	if errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("%q is a directory: name each of its files with -f", file)
	}
	return data, err
}

// outputFlag adds -o with these formats, of which the first is the default.
func outputFlag(cmd *cobra.Command, value *string, formats ...string) {
	choiceFlag(cmd, value, "output", "o", "`format`: "+strings.Join(formats, ", "), formats...)
}

// choiceFlag adds a flag with these values, of which the first is the default.
func choiceFlag(cmd *cobra.Command, value *string, name, short, usage string, words ...string) {
	*value = words[0]
	cmd.Flags().VarP(&choice{value, words}, name, short, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// choice is the value of a flag with a few allowed values.
type choice struct {
	value *string
	words []string
}

func (c *choice) String() string { return *c.value }

// Type implements pflag.Value.
func (c *choice) Type() string { return "format" }

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return fmt.Errorf("want one of %s", strings.Join(c.words, ", "))
	}
	*c.value = s
	return nil
}

// netnsFlag adds --netns, with completion of existing names.
func netnsFlag(cmd *cobra.Command, value *string, usage string) {
	cmd.Flags().StringVar(value, "netns", "", usage)
	_ = cmd.RegisterFlagCompletionFunc("netns", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		entries, err := os.ReadDir(node.NetnsDir)
		if err != nil {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names, cobra.ShellCompDirectiveDefault
	})
}

// colours reports whether the output may be coloured (https://no-color.org).
func (a *app) colours() bool {
	w := a.out
	if o, counted := w.(*output); counted {
		w = o.Writer
	}
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
