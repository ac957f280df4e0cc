package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/plumbline/plumbline/integration/cluster"
)

// controllerProcess is a running plumbline controller.
type controllerProcess struct {
	command          *exec.Cmd
	metrics, webhook string // addresses
	began            time.Time
	log              string
}

// startController starts a program's controller against a cluster.
func startController(ctx context.Context, c *cluster.Cluster, program string, flags ...string) (*controllerProcess, error) {
	tls := filepath.Join(c.Dir(), "webhook")
	if err := os.MkdirAll(tls, 0o755); err != nil {
		return nil, err
	}
	certificate, key, err := c.ServingCertificate("localhost")
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(tls, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	ports := make([]string, 2)
	for i := range ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports[i] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	p := &controllerProcess{
		metrics: "http://127.0.0.1:" + ports[0] + "/metrics", webhook: "https://localhost:" + ports[1] + "/validate",
		log: filepath.Join(c.Dir(), "controller-"+ports[0]+".log"), began: time.Now(),
	}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.command = exec.CommandContext(ctx, program, append([]string{
		"controller", "--kubeconfig", c.Admin(), "--namespace", "default", "--leader-elect=false",
		"--metrics-address", "127.0.0.1:" + ports[0], "--health-address", "0", "--webhook-port", ports[1], "--tls-dir", tls,
		"--log-level", "warn",
	}, flags...)...)
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start a controller: %w", err)
	}
	return p, nil
}

// stop ends the controller.
func (p *controllerProcess) stop() error {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	return p.command.Wait()
}

// read returns the controller's metrics, those of one name added up. Labels, written
// as in the exposition, choose among them.
func (p *controllerProcess) read(ctx context.Context, name string, labels ...string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.metrics, nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(answer.Body)
lines:
	for lines.Scan() {
		line := lines.Text()
		if line != name && !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue lines
			}
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, err
		}
		sum += value
	}
	return sum, lines.Err()
}

// requests returns how many requests the controller has sent to the API server, and
// how many of them write.
func (p *controllerProcess) requests(ctx context.Context) (all, writes float64, err error) {
	all, err = p.read(ctx, "rest_client_requests_total")
	if err != nil {
		return 0, 0, err
	}
	reads, err := p.read(ctx, "rest_client_requests_total", `method="GET"`)
	return all, all - reads, err
}

const ofTopologies = `controller="networktopology"`

// settled waits until at least so many passes over topologies are over and none is
// left to do, and returns how many there were.
func (p *controllerProcess) settled(ctx context.Context, passes int) (float64, error) {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	quiet := 0
	for {
		done, err := p.read(ctx, "controller_runtime_reconcile_total", ofTopologies)
		var busy, waiting float64
		if err == nil {
			busy, err = p.read(ctx, "controller_runtime_active_workers", ofTopologies)
		}
		if err == nil {
			waiting, err = p.read(ctx, "workqueue_depth", `name="networktopology"`)
		}
		if err == nil && done >= float64(passes) && busy == 0 && waiting == 0 {
			quiet++
		} else {
			quiet = 0
		}
		if quiet == 3 {
			return done, nil
		}
		select {
		case <-ctx.Done():
			said, _ := os.ReadFile(p.log)
			return done, errors.Join(context.Cause(ctx), err,
				fmt.Errorf("%.0f of %d passes; the controller said: %s", done, passes, said[max(0, len(said)-2000):]))
		case <-ticker.C:
		}
	}
}

// usage is a process's memory and processor time.
type usage struct {
	resident, peak float64 // MiB
	processor      time.Duration
}

func (p *controllerProcess) used() (usage, error) { return usedBy(p.command.Process.Pid) }

// usedBy reads /proc.
func usedBy(pid int) (u usage, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		n, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return u, err
		}
		switch fields[0] {
		case "VmRSS:":
			u.resident = n / 1024
		case "VmHWM:":
			u.peak = n / 1024
		}
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, ticks := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(ticks)
		if err != nil {
			return u, err
		}
		u.processor += time.Duration(n) * 10 * time.Millisecond
	}
	return u, nil
}
