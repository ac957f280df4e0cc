package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestLogFormat(t *testing.T) {
	for _, format := range []string{formatText, formatJSON} {
		var out bytes.Buffer
		a := &app{stdio: stdio{err: &out}, daemon: daemonFlags{logFormat: format}}
		logStart(a.log(slog.LevelInfo))
		var line map[string]any
		err := json.Unmarshal(out.Bytes(), &line)
		if isJSON := err == nil; isJSON != (format == formatJSON) {
			t.Errorf("%s: %s", format, out.String())
		}
		for _, key := range []string{"version", "revision", "go"} {
			if format == formatJSON && line[key] == "" || !strings.Contains(out.String(), key) {
				t.Errorf("%s: no %s in %s", format, key, out.String())
			}
		}
	}
}

func TestProfiles(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, address := range []string{":6060", "0.0.0.0:6060", "192.0.2.1:6060", "localhost:6060", "x"} {
		if err := (&daemonFlags{pprof: address}).profile(t.Context(), log); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%s: want a refusal, have %v", address, err)
		}
	}
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	var said bytes.Buffer
	if err := (&daemonFlags{pprof: address}).profile(t.Context(), slog.New(slog.NewTextHandler(&said, nil))); err != nil || !strings.Contains(said.String(), "cannot serve profiles") {
		t.Errorf("an address in use: %v, %s", err, said.String())
	}
	free.Close()
	if err := (&daemonFlags{pprof: address}).profile(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !bytes.Contains(text, []byte("goroutine profile")) {
		t.Errorf("%s, %v", text, err)
	}
}
