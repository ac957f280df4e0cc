package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/plumbline/plumbline/reconcile"
)

// debounce is how long the directory must have been quiet before it is read: an
// editor saves in several steps.
const debounce = 100 * time.Millisecond

// fileWatch watches directories, also ones that do not exist yet.
type fileWatch struct {
	watcher *fsnotify.Watcher
	wanted  []string
	watched map[string]bool // the watched parents
}

func newFileWatch() (*fileWatch, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	return &fileWatch{watcher: w, watched: map[string]bool{}}, nil
}

func (f *fileWatch) close() { f.watcher.Close() }

// follow watches these directories and no others. If one does not exist, its nearest
// parent is watched. It reports whether one is new: it may have changed since it was
// read.
func (f *fileWatch) follow(dirs []string) (fresh bool) {
	want := map[string]bool{}
	f.wanted = dirs
	for _, dir := range dirs {
		for {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == "/" {
				break
			}
			dir = filepath.Dir(dir)
		}
		want[dir] = true
	}
	for dir := range want {
		// Added again each time: a directory that was replaced has lost its watch.
		// One that cannot be watched is read at every resync.
		_ = f.watcher.Add(dir)
		fresh = fresh || !f.watched[dir]
	}
	for dir := range f.watched {
		if !want[dir] {
			_ = f.watcher.Remove(dir) // an error: it no longer exists
		}
	}
	f.watched = want
	return fresh
}

// dirs are the directories to watch: those of the reading, that of the journal, and
// those in which namespaces appear.
func (l *Loop) dirs(r reading) []string {
	dirs := append(slices.Clone(r.dirs), filepath.Clean(l.StateDir))
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, path := range l.paths {
		dirs = append(dirs, filepath.Dir(path))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// follow turns changes of files into work items, until ctx ends.
func (l *Loop) follow(ctx context.Context, files *fileWatch) {
	resync := time.NewTicker(l.Resync)
	defer resync.Stop()
	quiet := time.NewTimer(debounce) // changes before the watch began are read now
	defer quiet.Stop()
	reread := func() {
		if l.reread(ctx, files) {
			quiet.Reset(debounce)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-files.watcher.Events:
			if l.concerns(files, e) {
				quiet.Reset(debounce)
			}
			if e.Op.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename) {
				l.appeared(e.Name)
			}
		case err := <-files.watcher.Errors:
			// Events were lost: check everything.
			l.Log.Warn("cannot watch files", "error", err)
			quiet.Reset(debounce)
		case <-quiet.C:
			reread()
		case <-resync.C:
			reread()
		}
	}
}

// concerns reports whether an event may change what is wanted or known: any in a
// directory of the reading; a new file in that of the journal, which is written to all
// the time; a directory added or removed above one of these.
func (l *Loop) concerns(files *fileWatch, e fsnotify.Event) bool {
	dir := filepath.Dir(e.Name)
	l.mu.Lock()
	read := slices.Contains(l.read, dir)
	l.mu.Unlock()
	switch {
	case read:
		return e.Op != fsnotify.Chmod
	case dir == filepath.Clean(l.StateDir):
		return e.Op.Has(fsnotify.Create) && filepath.Ext(e.Name) == ".journal"
	default:
		return slices.ContainsFunc(files.wanted, func(d string) bool { return strings.HasPrefix(d+"/", e.Name+"/") })
	}
}

// appeared enqueues the sandboxes of a namespace that was added or removed. Its file
// exists a moment before the namespace is mounted on it; the pass fails then and is
// retried.
func (l *Loop) appeared(path string) {
	var ids []reconcile.SandboxID
	l.mu.Lock()
	for id, p := range l.paths {
		if p == path {
			ids = append(ids, id)
		}
	}
	l.mu.Unlock()
	for _, id := range ids {
		l.sched.enqueue(id)
	}
}

func (l *Loop) reread(ctx context.Context, files *fileWatch) (fresh bool) {
	r, err := readDir(ctx, l.Dir, l.Contracts)
	if err != nil {
		// The last reading stays in force.
		l.Log.Error("cannot use a file of the directory", "error", err)
		return false
	}
	l.reload(r)
	return files.follow(l.dirs(r))
}
