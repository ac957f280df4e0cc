package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plumbline/plumbline/integration/cluster/population"
	"github.com/plumbline/plumbline/reconcile/pod/hostroutes"
	"github.com/plumbline/plumbline/topology/v1alpha1"
)

// joins is how many nodes join, one after the other.
const joins = 10

// follower is the part of an agent that hears of the leases of all nodes, from which the routes
// to their pods follow.
type follower struct {
	*hostroutes.Client

	mu    sync.Mutex
	heard chan struct{} // closed at the next change
}

func (f *follower) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.heard)
	f.heard = make(chan struct{})
}

// await returns when the leases that are known fulfil a condition.
func (f *follower) await(ctx context.Context, fulfilled func([]*v1alpha1.AddressLease) bool) error {
	for {
		f.mu.Lock()
		heard := f.heard
		f.mu.Unlock()
		if leases, known := f.Of(scalePool); known && fulfilled(leases) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-heard:
		}
	}
}

// join measures how long it takes until followers know all leases, and until they know the block
// of a node that joins. Of their routes only the kernel's part is missing.
func (b *bench) join(ctx context.Context, a *addressAgents, size addressSize, r *addressResults) error {
	within, stop := context.WithCancel(ctx)
	defer stop()
	leases, err := b.leases(ctx, func(string) bool { return true })
	if err != nil {
		return err
	}
	var followers []*follower
	began := time.Now()
	for range size.followers {
		_, dyn, err := a.clientsOf()
		if err != nil {
			return err
		}
		f := &follower{Client: &hostroutes.Client{Dynamic: dyn}, heard: make(chan struct{})}
		f.Follow(within, []string{scalePool}, f.changed)
		followers = append(followers, f)
	}
	for _, f := range followers {
		if err := f.await(ctx, func(known []*v1alpha1.AddressLease) bool { return len(known) == leases }); err != nil {
			return fmt.Errorf("all leases are known: %w", err)
		}
	}
	r.followed = time.Since(began)
	for i := range joins {
		name := population.NodeName(size.nodes + i)
		if err := b.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
		n, err := a.startAgent(ctx, name)
		if err != nil {
			return err
		}
		a.nodes = append(a.nodes, n)
		if err := a.waitIdle(ctx); err != nil {
			return err
		}
		took, failed := make([]time.Duration, len(followers)), make([]error, len(followers))
		began := time.Now()
		var all sync.WaitGroup
		for i, f := range followers {
			all.Go(func() {
				failed[i] = f.await(ctx, func(known []*v1alpha1.AddressLease) bool {
					return slices.ContainsFunc(known, func(l *v1alpha1.AddressLease) bool { return l.Spec.Node == name })
				})
				took[i] = time.Since(began)
			})
		}
		_, err = n.allocate(ctx)
		all.Wait()
		if err := errors.Join(append(failed, err)...); err != nil {
			return err
		}
		r.joined = append(r.joined, took...)
	}
	return nil
}
