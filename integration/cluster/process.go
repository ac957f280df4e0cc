package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// launcher starts processes that are killed when this one ends for any reason. Linux
// sends the parent-death signal when the *thread* that started a child ends,
// and Go ends threads that a goroutine kept for itself: so one thread starts
// them all, and stays until the last is gone.
type launcher struct {
	work chan func()
	once sync.Once
}

func newLauncher() *launcher {
	l := &launcher{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range l.work {
			f()
		}
	}()
	return l
}

func (l *launcher) start(command *exec.Cmd) error {
	command.SysProcAttr = &syscall.SysProcAttr{
		// A session of its own: Ctrl-C at a terminal ends us, and we end it.
		Setsid:    true,
		Pdeathsig: syscall.SIGKILL,
	}
	result := make(chan error)
	l.work <- func() { result <- command.Start() }
	return <-result
}

func (l *launcher) close() { l.once.Do(func() { close(l.work) }) }

// process is a running program whose output goes to a file.
type process struct {
	name    string
	log     string
	command *exec.Cmd
	gone    chan struct{} // closed when it has ended
	err     error         // why, once gone is closed
}

// launch starts the program at path. Of this process's environment it gets only
// the search path: proxies and credentials of the user are not passed to it.
func (l *launcher) launch(dir, name, path string, environment []string, arguments ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), gone: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", name, err)
	}
	defer log.Close()
	p.command = exec.Command(path, arguments...)
	p.command.Args[0] = name
	p.command.Dir = dir
	p.command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, environment...)
	p.command.Stdout, p.command.Stderr = log, log
	if err := l.start(p.command); err != nil {
		return nil, fmt.Errorf("start %q: %w", name, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.gone)
	}()
	return p, nil
}

// stop ends the process: with SIGTERM if it ends within patience, otherwise with SIGKILL.
func (p *process) stop(patience time.Duration) {
	if patience > 0 {
		_ = p.command.Process.Signal(syscall.SIGTERM)
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-p.gone:
			return
		case <-timer.C:
		}
	}
	_ = p.command.Process.Kill()
	<-p.gone
}

// ended is an error with how the process ended and its last output, or nil
// while it runs.
func (p *process) ended() error {
	select {
	case <-p.gone:
	default:
		return nil
	}
	return fmt.Errorf("%s ended: %w; the end of %s:\n%s", p.name, orSuccess(p.err), p.log, tail(p.log, 15))
}

func orSuccess(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// tail is the last lines of a file, or why there are none.
func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// poll queries until the answer is no error, and returns the last one when ctx ends
// or when one of the processes that the answer depends on has ended. A query that ctx has ended
// tells nothing, if one before it has.
func poll(ctx context.Context, every time.Duration, ask func(context.Context) error, dependsOn ...*process) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var err error
	for {
		now := ask(ctx)
		if now == nil {
			return nil
		}
		if err == nil || ctx.Err() == nil {
			err = now
		}
		for _, p := range dependsOn {
			if ended := p.ended(); ended != nil {
				return ended
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
