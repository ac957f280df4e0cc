package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// daemon is `plumbline run` on a state directory, in a process of its own, so that its
// cost is separate from that of the measurement.
type daemon struct {
	cmd   *exec.Cmd
	ready time.Duration // from its start until every sandbox had its first pass
}

const listen = "127.0.0.1:9477"

func startDaemon(ctx context.Context, binary, state string) (*daemon, error) {
	empty, err := os.MkdirTemp("", "plumbline-benchmark-config-")
	if err != nil {
		return nil, err
	}
	d := &daemon{cmd: exec.CommandContext(ctx, binary, "run", "--config", empty, "--state-dir", state, "--listen", listen)}
	log, err := os.Create(empty + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd.Stderr = log
	start := time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	for time.Since(start) < 5*time.Minute {
		if _, err := get("/readyz"); err == nil {
			d.ready = time.Since(start)
			return d, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("it is not ready after five minutes"), d.stop())
}

func (d *daemon) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := d.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && !exit.Success() && exit.ExitCode() >= 0 {
		return nil // its exit status shows that it was signalled to stop
	}
	return err
}

func get(path string) (string, error) {
	r, err := http.Get("http://" + listen + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	return string(body), err
}

// metrics returns the sums of all series of some names.
func (d *daemon) metrics(names ...string) (map[string]float64, error) {
	text, err := get("/metrics")
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		for _, name := range names {
			rest, ok := strings.CutPrefix(lines.Text(), name)
			if !ok {
				continue
			}
			fields := strings.Fields(rest)
			if v, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil {
				out[name] += v
			}
		}
	}
	return out, lines.Err()
}

// cpu returns the time the process has had of a processor, in steps of 10 ms.
func (d *daemon) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime, proc_pid_stat(5)
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// files returns how many files the process has open, and how many are sockets.
func (d *daemon) files() (files, sockets int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return len(fds), sockets, err
}

func (d *daemon) rss() int64 { return rss(strconv.Itoa(d.cmd.Process.Pid)) }

// rss is the resident memory of a process in KiB.
func rss(process string) int64 {
	b, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64) // a number, by proc(5)
			return n
		}
	}
	return 0
}
