package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// probe queries one agent over a socket of its own. Two agents of a rolling update share
// the port of the metrics, so a request to it may be answered by the other agent.
func (a *app) probe() *cobra.Command {
	return &cobra.Command{
		Use:   "probe SOCKET PATH",
		Short: "Query the probes of an agent",
		Long: "Exits with 0 if the agent that serves the socket answers a path, such as /readyz, with success. " +
			"Used by the probes of its own container.",
		Example: "  plumbline probe /run/plumbline/probe.sock /readyz",
		Args:    cobra.ExactArgs(2),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd.Context(), args[0], args[1])
		},
	}
}

func ask(ctx context.Context, socket, path string) error {
	agent := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	return get(ctx, agent, "http://agent"+path, func(answer *http.Response) error {
		if answer.StatusCode == http.StatusOK {
			return nil
		}
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return fmt.Errorf("%s: %s: %s", path, answer.Status, strings.TrimSpace(string(said)))
	})
}

// get reads what a server on this host answers.
func get(ctx context.Context, over *http.Transport, url string, read func(*http.Response) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: over}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return read(answer)
}
