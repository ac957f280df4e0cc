package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Server is a running Prometheus.
type Server struct {
	address string
	log     string
	process *os.Process
	ended   chan struct{}
}

// Start runs Prometheus with a configuration, in a folder that is the caller's to
// remove, and returns when it answers. The caller has to [Server.Close] it.
func Start(ctx context.Context, programs, dir, config string) (*Server, error) {
	s, err := start(programs, dir, config)
	if err != nil {
		return nil, fmt.Errorf("start prometheus: %w", err)
	}
	for {
		_, err := s.get(ctx, "/-/ready", nil)
		if err == nil {
			return s, nil
		}
		select {
		case <-s.ended:
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
			continue
		}
		s.Close()
		said, _ := os.ReadFile(s.log)
		return nil, fmt.Errorf("start prometheus: %w:\n%s", errors.Join(err, context.Cause(ctx)), said)
	}
}

func start(programs, dir, config string) (*Server, error) {
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{address: listener.Addr().String(), log: filepath.Join(dir, "prometheus.log"), ended: make(chan struct{})}
	if err := listener.Close(); err != nil {
		return nil, err
	}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	c := exec.Command(filepath.Join(programs, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+s.address)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := make(chan error, 1)
	go func() {
		// Pdeathsig is sent when this thread ends, so it must live as long as we do.
		runtime.LockOSThread()
		defer close(s.ended)
		defer log.Close()
		err := c.Start()
		s.process = c.Process
		began <- err
		if err == nil {
			_ = c.Wait()
		}
	}()
	return s, <-began
}

// Close ends the process.
func (s *Server) Close() {
	_ = s.process.Kill()
	<-s.ended
}

// Log is the path of what it says.
func (s *Server) Log() string { return s.log }

// Series is the result of a query for one set of labels.
type Series struct {
	Labels map[string]string
	Points []Point
}

// Point is one value at one time.
type Point struct {
	Time  time.Time
	Value float64
}

// Query returns the values of an expression now.
func (s *Server) Query(ctx context.Context, expr string) ([]Series, error) {
	return s.query(ctx, "/api/v1/query", url.Values{"query": {expr}})
}

// Range returns the values of an expression from one time to another.
func (s *Server) Range(ctx context.Context, expr string, from, to time.Time, step time.Duration) ([]Series, error) {
	return s.query(ctx, "/api/v1/query_range", url.Values{
		"query": {expr}, "start": {unix(from)}, "end": {unix(to)}, "step": {strconv.FormatFloat(step.Seconds(), 'f', -1, 64)},
	})
}

func unix(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }

func (s *Server) query(ctx context.Context, path string, values url.Values) ([]Series, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  *point
			Values []point
		}
	}
	if err := s.api(ctx, path, values, &data); err != nil {
		return nil, fmt.Errorf("query %q: %w", values.Get("query"), err)
	}
	var out []Series
	for _, r := range data.Result {
		series := Series{Labels: r.Metric}
		if r.Value != nil {
			r.Values = []point{*r.Value}
		}
		for _, p := range r.Values {
			series.Points = append(series.Points, Point(p))
		}
		out = append(out, series)
	}
	return out, nil
}

// point is a time in seconds and a number in a string, in a list.
type point Point

// UnmarshalJSON implements json.Unmarshaler.
func (p *point) UnmarshalJSON(data []byte) error {
	var seconds float64
	var text string
	if err := json.Unmarshal(data, &[]any{&seconds, &text}); err != nil {
		return err
	}
	value, err := strconv.ParseFloat(text, 64)
	*p = point{time.UnixMilli(int64(seconds * 1000)), value}
	return err
}

// Rule is the state of a rule.
type Rule struct {
	Name   string
	Type   string // "recording" or "alerting"
	State  string // of an alerting one: "inactive", "pending" or "firing"
	Health string // "ok", "err" or, before it was evaluated, "unknown"
	Error  string `json:"lastError"`
}

// Rules lists the rules.
func (s *Server) Rules(ctx context.Context) ([]Rule, error) {
	var data struct{ Groups []struct{ Rules []Rule } }
	if err := s.api(ctx, "/api/v1/rules", nil, &data); err != nil {
		return nil, err
	}
	var out []Rule
	for _, g := range data.Groups {
		out = append(out, g.Rules...)
	}
	return out, nil
}

// Target is something that is scraped.
type Target struct {
	Labels map[string]string
	Health string // "up", "down" or "unknown"
	Error  string `json:"lastError"`
	URL    string `json:"scrapeUrl"`
}

// Targets lists what is scraped.
func (s *Server) Targets(ctx context.Context) ([]Target, error) {
	var data struct{ ActiveTargets []Target }
	err := s.api(ctx, "/api/v1/targets", nil, &data)
	return data.ActiveTargets, err
}

func (s *Server) api(ctx context.Context, path string, values url.Values, into any) error {
	body, err := s.get(ctx, path, values)
	if err != nil {
		return err
	}
	answer := struct {
		Data any `json:"data"`
	}{into}
	return json.Unmarshal(body, &answer)
}

func (s *Server) get(ctx context.Context, path string, values url.Values) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+path+"?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return body, err
}
