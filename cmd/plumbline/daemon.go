package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
)

// daemonFlags are the flags of all programs that run until they are stopped.
type daemonFlags struct {
	logFormat string
	pprof     string
}

func (d *daemonFlags) add(cmd *cobra.Command) {
	choiceFlag(cmd, &d.logFormat, "log-format", "", "`format` of the log: text, or json, one object a line", formatText, formatJSON)
	if cmd.Flags().Lookup("log-level") != nil {
		levels := []string{"debug", "info", "warn", "error"}
		_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions(levels, cobra.ShellCompDirectiveNoFileComp))
	}
	cmd.Flags().StringVar(&d.pprof, "pprof-address", "",
		"loopback `address` to serve Go profiles on, such as 127.0.0.1:6060; none if empty")
}

// profile serves profiles until the context ends. They show what the program has in memory, without
// authentication, so that only the machine itself reaches them.
func (d *daemonFlags) profile(ctx context.Context, log *slog.Logger) error {
	if d.pprof == "" {
		return nil
	}
	if address, err := netip.ParseAddrPort(d.pprof); err != nil || !address.Addr().IsLoopback() {
		return fmt.Errorf("--pprof-address: %q is not on the loopback: use one such as 127.0.0.1:6060", d.pprof)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.pprof)
	if err != nil { // as while another agent runs on the node during an update
		log.Warn("cannot serve profiles", "error", err)
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // until it is closed
	return nil
}
